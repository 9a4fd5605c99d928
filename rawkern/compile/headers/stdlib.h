#include <stddef.h>
namespace std {
using ::malloc; using ::free; using ::abs; using ::labs; using ::llabs;
}
