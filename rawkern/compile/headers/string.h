#include <stddef.h>
namespace std {
using ::memcpy; using ::memset;
}
