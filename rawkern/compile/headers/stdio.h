#include <stddef.h>
namespace std {
using ::printf;
}
