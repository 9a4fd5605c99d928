namespace std {
using ::clock; using ::clock_t;
}
