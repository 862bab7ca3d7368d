from t2 import setup
from t1 import *
from att import attack
from mibp_cert.fitted.cut import Zonotope
import time
L=SCORE_LOSSES["cross-entropy"]
def empty(z): return bool((z.low>z.high).any() or (z.s_low>z.s_high).any())
def refute(t,z,tau,a,own,sign,v,repeats=2):
    """can sign*a·θ reach v?"""
    for _ in range(repeats):
        zz=Zonotope(t,L,z,tau); 
        if own>=0:
            # own noise: a+d ; use a with extra slack: assume (x+d)θ>=v => xθ >= v - Σ r|θ|
            vv=v-float(t.rows.r[own]@np.maximum(np.abs(z.low),np.abs(z.high)))
        else: vv=v
        z=zz.bounds(a,vv)
        if empty(z): return True
    up=Dual(t,L,z,tau,3).upper(a[None],np.array([own]),sign)[0]
    return up<v
def prove_cut(t,c,tau,factor=1.5,attempts=14,log=print):
    first=first_order(t,L,c,tau); lo1,hi1=flat(first); centre=np.concatenate([c,t.rows.x@c])
    low=centre-factor*np.maximum(centre-lo1,1e-9); high=centre+factor*np.maximum(hi1-centre,1e-9)
    p=len(c); n=len(t.rows)
    for k in range(attempts):
        z=unflat(low,high,first); new=all_bounds(t,L,z,tau); nl,nh=flat(new)
        bl,bh=nl<=low,nh>=high; before=bl.sum()+bh.sum()
        for side,bad,end,sg in ((0,bl,low,-1.),(1,bh,high,1.)):
            for i in np.flatnonzero(bad):
                a=sg*(np.eye(p)[i] if i<p else t.rows.x[i-p]); own=-1 if i<p else i-p
                if refute(t,z,tau,a,own,sg,sg*end[i]): bad[i]=False
        if log: log(f"round {k}: {before} fail, after the cut {bl.sum()+bh.sum()}; worst {max(((centre-nl)/(centre-low)).max(), ((nh-centre)/(high-centre)).max()):.3f}")
        if not (bl.any() or bh.any()): return z
        low=np.where(bl,centre-1.1*(centre-low),low); high=np.where(bh,centre+1.1*(high-centre),high)
    return None
if __name__=="__main__":
  for seed in range(2):
    t,a,y=setup("two-moons",.1,1.,seed); c=minimiser(t,L); tau=residual(t,L,c); t0=time.time()
    z=prove_cut(t,c,tau,2.0); print("time",time.time()-t0)
    if z is None: continue
    z=tighten(t,L,z,tau,6)
    sgn=np.where(a@c>0,1,-1); A=a*sgn[:,None]; ok=(sgn>0)==(y==1)
    b,_=attack(L,t,c,A); lo=-Dual(t,L,z,tau,4).upper(-A)
    cert=lo>0; print("plain",100*np.mean(cert&ok),"attacked",100*np.mean((b>0)&ok))
    for i in np.flatnonzero((lo<=0)&(b>0)):
        if refute(t,z,tau,-A[i],-1,1.,0.0,3): cert[i]=True
    print("cut",100*np.mean(cert&ok),time.time()-t0)
