import sys; sys.path.insert(0,'/tmp/fit/src')
import numpy as np, time, mibp_cert as mc
from mibp_cert.data.builtin import load
from mibp_cert.fitted.losses import *
from mibp_cert.fitted.table import *
from mibp_cert.fitted.ranges import *
from mibp_cert.fitted.minimum import *
from mibp_cert.fitted.dual import *
from att import attack,fits
L=SCORE_LOSSES["cross-entropy"]
def problem(tr,threat,C,L=L,column=1):
    mem=threat.bind(tr)
    t=table_of(mem.noise(),column,np.ones(len(tr)),np.r_[np.full(tr.features,1/C),0.])
    ref=Rows(np.c_[mem.reference[0],np.ones(len(tr))],0*t.rows.r,mem.reference[1][:,column],0*t.rows.q,t.rows.w)
    c=minimise(ref,t.alpha,L); return mem,Problem(t,L,c,tilt(ref,t.alpha,L,c))
def go(name,threat,C,seed,log=None,cut=True):
    sp=load(name,seed); tr,te=sp.train,sp.test; mem,P=problem(tr,threat,C); t,c=P.table,P.c; t0=time.time()
    z=prove(P,cut=False) 
    if z is None and cut: z=prove(P,True,log)
    if z is None: return "unproven",time.time()-t0
    z=tighten(P,z,3); a=np.c_[te.x,np.ones(len(te))]; sgn=np.where(a@c>0,1,-1); A=a*sgn[:,None]; ok=(sgn>0)==(te.y==1)
    lo=-Dual(t,L,z,P.tau,3).upper(-A); cert=lo>0
    rng=np.random.default_rng(0); ms=mem.sample(rng,100); X=np.stack([np.c_[m[0],np.ones(len(tr))] for m in ms]); Y=np.stack([m[1][:,1] for m in ms])
    th=fits(L,X,Y,t.rows.w,t.alpha,np.broadcast_to(c,(len(ms),len(c))))
    low=(A@th.T).min(axis=1)
    if t.rows.r.any() and not t.budgets and not t.blocks: low=np.minimum(low,attack(L,t,c,A)[0])
    n0=100*np.mean(cert&ok)
    for i in np.flatnonzero(~cert&(low>0)): cert[i]=not P.reaches(z,-A[i],0.0)
    return "clean",100*ok.mean(),"att",100*np.mean((low>0)&ok),"cert",n0,"cut",100*np.mean(cert&ok),"viol",int((low<lo).sum()),int((cert&(low<=0)).sum()),int(((th<z.low)|(th>z.high)).sum()),round(time.time()-t0,2)
if __name__=="__main__":
    for nm,th in [("linf",mc.LInf(.05)),("flip1",mc.LabelFlips(1)),("flip3",mc.LabelFlips(3)),("budget",mc.Budget(mc.LInf(.2),rows=3)),("l2",mc.L2(.1)),("l1",mc.L1(.1)),("both",mc.LInf(.01)&mc.LabelFlips(1)),("both2",mc.Budget(mc.LInf(.1),rows=2)&mc.LabelFlips(1)),("linf.1",mc.LInf(.1))]:
        for s in range(2): print(nm,s,*go("two-moons",th,1.,s),flush=True)
