// The tuples and pairs of <thrust/tuple.h> and <thrust/pair.h>, which are libcu++'s; Thrust's own headers need a host.
#include <cuda/std/tuple>
#include <cuda/std/utility>
namespace thrust {
using ::cuda::std::get;
using ::cuda::std::ignore;
using ::cuda::std::make_pair;
using ::cuda::std::make_tuple;
using ::cuda::std::pair;
using ::cuda::std::swap;
using ::cuda::std::tie;
using ::cuda::std::tuple;
using ::cuda::std::tuple_element;
using ::cuda::std::tuple_size;
}  // namespace thrust
