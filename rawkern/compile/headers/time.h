#define CLOCKS_PER_SEC 1000000
namespace std {
using ::clock; using ::clock_t;
}
