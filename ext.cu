
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <vector>
#include <tuple>
#include <optional>
#include <string>
#include <map>
#include <algorithm>
#include <numeric>
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cpu() || x.is_cuda(), #x " must be a tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)
template <typename scalar_t> __global__ void axpb(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, scalar_t a, scalar_t b, int64_t n){ CUDA_KERNEL_LOOP(i,n) y[i]=a*x[i]+b; }
template <typename scalar_t> __global__ void acc(const torch::PackedTensorAccessor32<scalar_t,3,torch::RestrictPtrTraits> x, torch::PackedTensorAccessor32<scalar_t,2,torch::RestrictPtrTraits> y){ int i=blockIdx.x*blockDim.x+threadIdx.x; int j=blockIdx.y; if(i<x.size(2)){ scalar_t s=0; for(int k=0;k<x.size(1);k++) s+=x[j][k][i]; y[j][i]=s; } }
torch::Tensor axpb_cuda(torch::Tensor x,double a,c10::optional<double> b){
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y=torch::empty_like(x); const int threads=256; const auto n=x.numel();
  const dim3 blocks((n+threads-1)/threads);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf,at::kBFloat16,x.scalar_type(),"axpb",[&]{ axpb<scalar_t><<<blocks,threads,0,at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(),y.data_ptr<scalar_t>(),static_cast<scalar_t>(a),static_cast<scalar_t>(b.value_or(0.5)),n); });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y; }
std::tuple<at::Tensor,at::Tensor,int64_t> many(const at::Tensor& x,bool flip=false,std::vector<int64_t> dims={0,1}){
  TORCH_CHECK(x.dim()==3,"need 3 dims, got ",x.dim(),"; shape ",x.sizes());
  auto opts=x.options().dtype(torch::kFloat32).device(x.device());
  at::Tensor y=at::zeros({x.size(0),x.size(2)},opts);
  dim3 g((x.size(2)+31)/32,x.size(0));
  acc<float><<<g,32>>>(x.packed_accessor32<float,3,torch::RestrictPtrTraits>(),y.packed_accessor32<float,2,torch::RestrictPtrTraits>());
  int64_t total=1; for(auto d:dims) total*=x.size(d);
  std::vector<at::Tensor> parts; for(int i=0;i<y.size(0);++i) parts.push_back(flip? -y[i] : y[i]);
  auto st=at::stack(parts,0);
  return std::make_tuple(st,y.sum(),total); }
std::vector<at::Tensor> splitter(at::Tensor x,int k){ std::vector<at::Tensor> out(k); int64_t step=x.size(0)/k, rem=x.size(0)%k, at=0; for(int i=0;i<k;i++){ int64_t len=step+(i<rem?1:0); out[i]=x.narrow(0,at,len).clone(); at+=len; } return out; }
int64_t ints(int a,unsigned b,long c,uint8_t d){ int s=a*1000003; s^=(s>>5); unsigned u=b-1; c/=3; d+=200; return (int64_t)s+u+c+d; }
double dbl(double x,int n){ float f=x; f*=1.1; double r=1; for(int i=0;i<n;++i){ r*=f/(i+1); if(r<1e-3) break; } return r+(n/2)+(n%3)+std::floor(-x)+std::pow(x,2)+(int)(-x); }
std::string str(std::string s,int k){ std::string r; for(int i=0;i<k;i++) r+=s+std::to_string(i)+(i%2?"!":"?"); return r; }
std::map<std::string,double> dict(at::Tensor x){ std::map<std::string,double> m; m["mean"]=x.mean().item<double>(); m["max"]=x.max().item<float>(); m["n"]=x.numel(); return m; }
at::Tensor inplace_(at::Tensor x,const std::optional<at::Tensor>& w){ if(w.has_value()){ x.mul_(*w); } else x.add_(1); x.index_put_({torch::indexing::Slice(0,2)},7); x[2]=5; return x; }
at::Tensor ptr(at::Tensor x){ auto c=x.contiguous().to(torch::kCPU); float* p=c.data_ptr<float>(); std::sort(p,p+c.numel()); float s=std::accumulate(p,p+c.numel(),0.0f); for(int64_t i=0;i<c.numel();++i) p[i]-=s/c.numel(); auto a=c.accessor<float,1>(); a[0]=a[1]*2; return c; }
int sw(int x){ switch(x){ case 0: return 10; case 1: x+=5; case 2: x*=2; break; default: x=-1; } return x; }
struct Cfg { int n; float s; Cfg(int n,float s):n(n),s(s){} float both() const { return n*s; } };
float cfg(const Cfg& c){ return c.both(); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME,m){ m.doc()="x"; m.def("axpb",&axpb_cuda,"a",py::arg("x"),py::arg("a")=2.0,py::arg("b")=py::none()); m.def("many",&many,py::arg("x"),py::arg("flip")=false,py::arg("dims")=std::vector<int64_t>{0,1}); m.def("splitter",&splitter); m.def("ints",&ints); m.def("dbl",&dbl); m.def("str",&str); m.def("dict",&dict); m.def("inplace_",&inplace_,py::arg("x"),py::arg("w")=py::none()); m.def("ptr",&ptr); m.def("sw",&sw); py::class_<Cfg>(m,"Cfg").def(py::init<int,float>()).def_readwrite("n",&Cfg::n).def("both",&Cfg::both); m.def("cfg",&cfg); m.attr("VERSION")=3; }
