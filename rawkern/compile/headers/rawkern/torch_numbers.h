// Arithmetic of the 16-bit numbers of PyTorch's C++ headers, which <rawkern/torch.h> has.
namespace c10 {

// Numbers, which are compared as they are: with a type of 16 bits, and with __half, they could be converted to both.
template <typename T> struct number {};
template <> struct number<bool> { using type = bool; };
template <> struct number<char> { using type = char; };
template <> struct number<signed char> { using type = signed char; };
template <> struct number<unsigned char> { using type = unsigned char; };
template <> struct number<short> { using type = short; };
template <> struct number<unsigned short> { using type = unsigned short; };
template <> struct number<int> { using type = int; };
template <> struct number<unsigned int> { using type = unsigned int; };
template <> struct number<long> { using type = long; };
template <> struct number<unsigned long> { using type = unsigned long; };
template <> struct number<long long> { using type = long long; };
template <> struct number<unsigned long long> { using type = unsigned long long; };
template <> struct number<float> { using type = float; };
template <> struct number<double> { using type = double; };

// Half computes in float and rounds each result, as torch's does.
__host__ __device__ __forceinline__ Half operator+(const Half& a, const Half& b) { return static_cast<float>(a) + static_cast<float>(b); }
__host__ __device__ __forceinline__ Half& operator+=(Half& a, const Half& b) { a = a + b; return a; }
__host__ __device__ __forceinline__ float operator+(Half a, float b) { return static_cast<float>(a) + b; }
__host__ __device__ __forceinline__ float operator+(float a, Half b) { return a + static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator+=(float& a, const Half& b) { return a = a + static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator+(Half a, double b) { return static_cast<double>(a) + b; }
__host__ __device__ __forceinline__ double operator+(double a, Half b) { return a + static_cast<double>(b); }
__host__ __device__ __forceinline__ Half operator+(Half a, int b) { return a + static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator+(int a, Half b) { return static_cast<Half>(a) + b; }
__host__ __device__ __forceinline__ Half operator+(Half a, int64_t b) { return a + static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator+(int64_t a, Half b) { return static_cast<Half>(a) + b; }
__host__ __device__ __forceinline__ Half operator-(const Half& a, const Half& b) { return static_cast<float>(a) - static_cast<float>(b); }
__host__ __device__ __forceinline__ Half& operator-=(Half& a, const Half& b) { a = a - b; return a; }
__host__ __device__ __forceinline__ float operator-(Half a, float b) { return static_cast<float>(a) - b; }
__host__ __device__ __forceinline__ float operator-(float a, Half b) { return a - static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator-=(float& a, const Half& b) { return a = a - static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator-(Half a, double b) { return static_cast<double>(a) - b; }
__host__ __device__ __forceinline__ double operator-(double a, Half b) { return a - static_cast<double>(b); }
__host__ __device__ __forceinline__ Half operator-(Half a, int b) { return a - static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator-(int a, Half b) { return static_cast<Half>(a) - b; }
__host__ __device__ __forceinline__ Half operator-(Half a, int64_t b) { return a - static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator-(int64_t a, Half b) { return static_cast<Half>(a) - b; }
__host__ __device__ __forceinline__ Half operator*(const Half& a, const Half& b) { return static_cast<float>(a) * static_cast<float>(b); }
__host__ __device__ __forceinline__ Half& operator*=(Half& a, const Half& b) { a = a * b; return a; }
__host__ __device__ __forceinline__ float operator*(Half a, float b) { return static_cast<float>(a) * b; }
__host__ __device__ __forceinline__ float operator*(float a, Half b) { return a * static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator*=(float& a, const Half& b) { return a = a * static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator*(Half a, double b) { return static_cast<double>(a) * b; }
__host__ __device__ __forceinline__ double operator*(double a, Half b) { return a * static_cast<double>(b); }
__host__ __device__ __forceinline__ Half operator*(Half a, int b) { return a * static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator*(int a, Half b) { return static_cast<Half>(a) * b; }
__host__ __device__ __forceinline__ Half operator*(Half a, int64_t b) { return a * static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator*(int64_t a, Half b) { return static_cast<Half>(a) * b; }
__host__ __device__ __forceinline__ Half operator/(const Half& a, const Half& b) { return static_cast<float>(a) / static_cast<float>(b); }
__host__ __device__ __forceinline__ Half& operator/=(Half& a, const Half& b) { a = a / b; return a; }
__host__ __device__ __forceinline__ float operator/(Half a, float b) { return static_cast<float>(a) / b; }
__host__ __device__ __forceinline__ float operator/(float a, Half b) { return a / static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator/=(float& a, const Half& b) { return a = a / static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator/(Half a, double b) { return static_cast<double>(a) / b; }
__host__ __device__ __forceinline__ double operator/(double a, Half b) { return a / static_cast<double>(b); }
__host__ __device__ __forceinline__ Half operator/(Half a, int b) { return a / static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator/(int a, Half b) { return static_cast<Half>(a) / b; }
__host__ __device__ __forceinline__ Half operator/(Half a, int64_t b) { return a / static_cast<Half>(b); }
__host__ __device__ __forceinline__ Half operator/(int64_t a, Half b) { return static_cast<Half>(a) / b; }
__host__ __device__ __forceinline__ Half operator-(const Half& a) { return -static_cast<float>(a); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator==(const Half& a, T b) { return static_cast<float>(a) == b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator==(T a, const Half& b) { return a == static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator==(const Half& a, const Half& b) { return static_cast<float>(a) == static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator!=(const Half& a, T b) { return static_cast<float>(a) != b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator!=(T a, const Half& b) { return a != static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator!=(const Half& a, const Half& b) { return static_cast<float>(a) != static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<(const Half& a, T b) { return static_cast<float>(a) < b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<(T a, const Half& b) { return a < static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator<(const Half& a, const Half& b) { return static_cast<float>(a) < static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<=(const Half& a, T b) { return static_cast<float>(a) <= b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<=(T a, const Half& b) { return a <= static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator<=(const Half& a, const Half& b) { return static_cast<float>(a) <= static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>(const Half& a, T b) { return static_cast<float>(a) > b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>(T a, const Half& b) { return a > static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator>(const Half& a, const Half& b) { return static_cast<float>(a) > static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>=(const Half& a, T b) { return static_cast<float>(a) >= b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>=(T a, const Half& b) { return a >= static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator>=(const Half& a, const Half& b) { return static_cast<float>(a) >= static_cast<float>(b); }
__device__ __forceinline__ Half __ldg(const Half* p) { return Half(::__ldg(reinterpret_cast<const unsigned short*>(p)), Half::from_bits()); }

// BFloat16 computes in float and rounds each result, as torch's does.
__host__ __device__ __forceinline__ BFloat16 operator+(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) + static_cast<float>(b); }
__host__ __device__ __forceinline__ BFloat16& operator+=(BFloat16& a, const BFloat16& b) { a = a + b; return a; }
__host__ __device__ __forceinline__ float operator+(BFloat16 a, float b) { return static_cast<float>(a) + b; }
__host__ __device__ __forceinline__ float operator+(float a, BFloat16 b) { return a + static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator+=(float& a, const BFloat16& b) { return a = a + static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator+(BFloat16 a, double b) { return static_cast<double>(a) + b; }
__host__ __device__ __forceinline__ double operator+(double a, BFloat16 b) { return a + static_cast<double>(b); }
__host__ __device__ __forceinline__ BFloat16 operator+(BFloat16 a, int b) { return a + static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator+(int a, BFloat16 b) { return static_cast<BFloat16>(a) + b; }
__host__ __device__ __forceinline__ BFloat16 operator+(BFloat16 a, int64_t b) { return a + static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator+(int64_t a, BFloat16 b) { return static_cast<BFloat16>(a) + b; }
__host__ __device__ __forceinline__ BFloat16 operator-(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) - static_cast<float>(b); }
__host__ __device__ __forceinline__ BFloat16& operator-=(BFloat16& a, const BFloat16& b) { a = a - b; return a; }
__host__ __device__ __forceinline__ float operator-(BFloat16 a, float b) { return static_cast<float>(a) - b; }
__host__ __device__ __forceinline__ float operator-(float a, BFloat16 b) { return a - static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator-=(float& a, const BFloat16& b) { return a = a - static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator-(BFloat16 a, double b) { return static_cast<double>(a) - b; }
__host__ __device__ __forceinline__ double operator-(double a, BFloat16 b) { return a - static_cast<double>(b); }
__host__ __device__ __forceinline__ BFloat16 operator-(BFloat16 a, int b) { return a - static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator-(int a, BFloat16 b) { return static_cast<BFloat16>(a) - b; }
__host__ __device__ __forceinline__ BFloat16 operator-(BFloat16 a, int64_t b) { return a - static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator-(int64_t a, BFloat16 b) { return static_cast<BFloat16>(a) - b; }
__host__ __device__ __forceinline__ BFloat16 operator*(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) * static_cast<float>(b); }
__host__ __device__ __forceinline__ BFloat16& operator*=(BFloat16& a, const BFloat16& b) { a = a * b; return a; }
__host__ __device__ __forceinline__ float operator*(BFloat16 a, float b) { return static_cast<float>(a) * b; }
__host__ __device__ __forceinline__ float operator*(float a, BFloat16 b) { return a * static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator*=(float& a, const BFloat16& b) { return a = a * static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator*(BFloat16 a, double b) { return static_cast<double>(a) * b; }
__host__ __device__ __forceinline__ double operator*(double a, BFloat16 b) { return a * static_cast<double>(b); }
__host__ __device__ __forceinline__ BFloat16 operator*(BFloat16 a, int b) { return a * static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator*(int a, BFloat16 b) { return static_cast<BFloat16>(a) * b; }
__host__ __device__ __forceinline__ BFloat16 operator*(BFloat16 a, int64_t b) { return a * static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator*(int64_t a, BFloat16 b) { return static_cast<BFloat16>(a) * b; }
__host__ __device__ __forceinline__ BFloat16 operator/(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) / static_cast<float>(b); }
__host__ __device__ __forceinline__ BFloat16& operator/=(BFloat16& a, const BFloat16& b) { a = a / b; return a; }
__host__ __device__ __forceinline__ float operator/(BFloat16 a, float b) { return static_cast<float>(a) / b; }
__host__ __device__ __forceinline__ float operator/(float a, BFloat16 b) { return a / static_cast<float>(b); }
__host__ __device__ __forceinline__ float& operator/=(float& a, const BFloat16& b) { return a = a / static_cast<float>(b); }
__host__ __device__ __forceinline__ double operator/(BFloat16 a, double b) { return static_cast<double>(a) / b; }
__host__ __device__ __forceinline__ double operator/(double a, BFloat16 b) { return a / static_cast<double>(b); }
__host__ __device__ __forceinline__ BFloat16 operator/(BFloat16 a, int b) { return a / static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator/(int a, BFloat16 b) { return static_cast<BFloat16>(a) / b; }
__host__ __device__ __forceinline__ BFloat16 operator/(BFloat16 a, int64_t b) { return a / static_cast<BFloat16>(b); }
__host__ __device__ __forceinline__ BFloat16 operator/(int64_t a, BFloat16 b) { return static_cast<BFloat16>(a) / b; }
__host__ __device__ __forceinline__ BFloat16 operator-(const BFloat16& a) { return -static_cast<float>(a); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator==(const BFloat16& a, T b) { return static_cast<float>(a) == b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator==(T a, const BFloat16& b) { return a == static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator==(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) == static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator!=(const BFloat16& a, T b) { return static_cast<float>(a) != b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator!=(T a, const BFloat16& b) { return a != static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator!=(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) != static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<(const BFloat16& a, T b) { return static_cast<float>(a) < b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<(T a, const BFloat16& b) { return a < static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator<(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) < static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<=(const BFloat16& a, T b) { return static_cast<float>(a) <= b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator<=(T a, const BFloat16& b) { return a <= static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator<=(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) <= static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>(const BFloat16& a, T b) { return static_cast<float>(a) > b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>(T a, const BFloat16& b) { return a > static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator>(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) > static_cast<float>(b); }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>=(const BFloat16& a, T b) { return static_cast<float>(a) >= b; }
template <typename T, typename = typename number<T>::type> __host__ __device__ __forceinline__ bool operator>=(T a, const BFloat16& b) { return a >= static_cast<float>(b); }
__host__ __device__ __forceinline__ bool operator>=(const BFloat16& a, const BFloat16& b) { return static_cast<float>(a) >= static_cast<float>(b); }
__device__ __forceinline__ BFloat16 __ldg(const BFloat16* p) { return BFloat16(::__ldg(reinterpret_cast<const unsigned short*>(p)), BFloat16::from_bits()); }
}
