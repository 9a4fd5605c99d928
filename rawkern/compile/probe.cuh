// Put after a source: the symbol of &__rawkern_probe<__rawkern_plain<T>::__rawkern_TYPE> spells a type in full.
// __rawkern_plain puts the integer type in an enumeration's place: that is what a caller can give. Every name is
// prefixed, because the source may have macros named N or T.
template <class __rawkern_F>
__global__ void __rawkern_probe();
template <class __rawkern_T, bool = __is_enum(__rawkern_T)>
struct __rawkern_plain {
    using __rawkern_TYPE = __rawkern_T;
};
template <class __rawkern_T>
struct __rawkern_plain<__rawkern_T, true> {
    using __rawkern_TYPE = __underlying_type(__rawkern_T);
};
template <class __rawkern_T>
struct __rawkern_plain<__rawkern_T*, false> {
    using __rawkern_TYPE = typename __rawkern_plain<__rawkern_T>::__rawkern_TYPE*;
};
template <class __rawkern_T>
struct __rawkern_plain<__rawkern_T&, false> {
    using __rawkern_TYPE = typename __rawkern_plain<__rawkern_T>::__rawkern_TYPE&;
};
template <class __rawkern_T>
struct __rawkern_plain<const __rawkern_T, false> {
    using __rawkern_TYPE = const typename __rawkern_plain<__rawkern_T>::__rawkern_TYPE;
};
template <class __rawkern_T>
struct __rawkern_plain<const __rawkern_T, true> {
    using __rawkern_TYPE = const __underlying_type(__rawkern_T);
};
template <class __rawkern_T, decltype(sizeof(0)) __rawkern_N>
struct __rawkern_plain<__rawkern_T[__rawkern_N], false> {
    using __rawkern_TYPE = typename __rawkern_plain<__rawkern_T>::__rawkern_TYPE[__rawkern_N];
};
template <class __rawkern_T, decltype(sizeof(0)) __rawkern_N>
struct __rawkern_plain<const __rawkern_T[__rawkern_N], false> {
    using __rawkern_TYPE = const typename __rawkern_plain<__rawkern_T>::__rawkern_TYPE[__rawkern_N];
};
template <class __rawkern_F, class... __rawkern_A>
struct __rawkern_plain<__rawkern_F(__rawkern_A...), false> {
    using __rawkern_TYPE = __rawkern_F(typename __rawkern_plain<__rawkern_A>::__rawkern_TYPE...);
};
