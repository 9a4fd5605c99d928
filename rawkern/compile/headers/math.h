#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000LL)
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.434294481903251827651
#define M_LN2 0.693147180559945309417
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.785398163397448309616
#define M_1_PI 0.318309886183790671538
#define M_2_PI 0.636619772367581343076
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.707106781186547524401
// In float, as the GNU library has them.
#define M_Ef 2.71828182845904523536F
#define M_LOG2Ef 1.44269504088896340736F
#define M_LOG10Ef 0.434294481903251827651F
#define M_LN2f 0.693147180559945309417F
#define M_LN10f 2.30258509299404568402F
#define M_PIf 3.14159265358979323846F
#define M_PI_2f 1.57079632679489661923F
#define M_PI_4f 0.785398163397448309616F
#define M_1_PIf 0.318309886183790671538F
#define M_2_PIf 0.636619772367581343076F
#define M_2_SQRTPIf 1.12837916709551257390F
#define M_SQRT2f 1.41421356237309504880F
#define M_SQRT1_2f 0.707106781186547524401F
#define MAXFLOAT 3.402823466e+38F
namespace std {
using ::fabs; using ::fmod; using ::remainder; using ::fma; using ::fmax; using ::fmin; using ::fdim; using ::exp;
using ::exp2; using ::expm1; using ::log; using ::log10; using ::log2; using ::log1p; using ::pow; using ::sqrt;
using ::cbrt; using ::hypot; using ::sin; using ::cos; using ::tan; using ::asin; using ::acos; using ::atan;
using ::atan2; using ::sinh; using ::cosh; using ::tanh; using ::asinh; using ::acosh; using ::atanh; using ::erf;
using ::erfc; using ::tgamma; using ::lgamma; using ::ceil; using ::floor; using ::trunc; using ::round;
using ::nearbyint; using ::rint; using ::frexp; using ::ldexp; using ::modf; using ::scalbn; using ::ilogb;
using ::logb; using ::nextafter; using ::copysign; using ::fabsf; using ::fmodf; using ::remainderf; using ::fmaf;
using ::fmaxf; using ::fminf; using ::fdimf; using ::expf; using ::exp2f; using ::expm1f; using ::logf;
using ::log10f; using ::log2f; using ::log1pf; using ::powf; using ::sqrtf; using ::cbrtf; using ::hypotf;
using ::sinf; using ::cosf; using ::tanf; using ::asinf; using ::acosf; using ::atanf; using ::atan2f;
using ::sinhf; using ::coshf; using ::tanhf; using ::asinhf; using ::acoshf; using ::atanhf; using ::erff;
using ::erfcf; using ::tgammaf; using ::lgammaf; using ::ceilf; using ::floorf; using ::truncf; using ::roundf;
using ::nearbyintf; using ::rintf; using ::frexpf; using ::ldexpf; using ::modff; using ::scalbnf; using ::ilogbf;
using ::logbf; using ::nextafterf; using ::copysignf; using ::abs; using ::remquo; using ::lround; using ::llround;
using ::lrint; using ::llrint; using ::scalbln; using ::isfinite; using ::isinf; using ::isnan; using ::signbit;
}
