// CUB's functions for the host are left out; files say `using namespace cub` even so.
namespace cub {}
