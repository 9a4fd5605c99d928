#include <cmath>
#include <cstdint>
extern "C" {int64_t ints(int a,unsigned b,long c,uint8_t d){ int s=a*1000003; s^=(s>>5); unsigned u=b-1; c/=3; d+=200; return (int64_t)s+u+c+d; }
double dbl(double x,int n){ float f=x; f*=1.1; double r=1; for(int i=0;i<n;++i){ r*=f/(i+1); if(r<1e-3) break; } return r+(n/2)+(n%3)+std::floor(-x)+std::pow(x,2)+(int)(-x); }}