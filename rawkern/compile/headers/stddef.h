typedef decltype(sizeof(0)) size_t;
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
#define NULL 0
#define offsetof(type, member) ((size_t)((char*)&(((type*)0)->member) - (char*)0))
namespace std {
using ::size_t; using ::ptrdiff_t; using nullptr_t = decltype(nullptr);
}
