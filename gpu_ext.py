import torch, time, sys, cProfile, pstats, io
import benchmarks.extensions as b
from rawkern import cpp_extension
import rawkern.launch.native as nat
from rawkern.launch import intercept
count=[0]; orig=intercept.start
def st(*a): count[0]+=1; return orig(*a)
intercept.start=st
args=b.inputs()
def t(f,n=300):
    r=[]
    for _ in range(7):
        torch.cuda.synchronize(); s=time.perf_counter()
        for _ in range(n): f()
        r.append((time.perf_counter()-s)/n); torch.cuda.synchronize()
    return sorted(r)[3]*1e6
for name in args:
    e=cpp_extension.load(name,[b.FOLDER/f"{name}.cu"])
    f=lambda: e.run(*args[name])
    for _ in range(5): f(); nat.wait()
    x=t(f); c0=count[0]
    for _ in range(200): f()
    print(name, f"{x:.1f} us; slow launches a call", (count[0]-c0)/200, flush=True)
    if x>14:
        p=cProfile.Profile(); p.enable()
        for _ in range(300): f()
        p.disable(); s=io.StringIO(); pstats.Stats(p,stream=s).sort_stats("tottime").print_stats(14)
        print("\n".join(l[:110] for l in s.getvalue().splitlines() if l.strip())[:1800], flush=True)
torch.cuda.synchronize()
