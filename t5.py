import sys; sys.path.insert(0,'/tmp/fit/src')
import numpy as np, time, mibp_cert as mc
from mibp_cert.data.builtin import load
from mibp_cert.fitted.losses import *
from mibp_cert.fitted.table import *
from mibp_cert.fitted.prove import *
from mibp_cert.fitted.dual import *
from att import attack,fits
L=SCORE_LOSSES["cross-entropy"]
def go(name,threat,C,seed,log=None,factor=1.5):
    sp=load(name,seed); tr,te=sp.train,sp.test; mem=threat.bind(tr)
    t=table_of(mem.noise(),1,np.ones(len(tr)),np.r_[np.full(tr.features,1/C),0.])
    ref=Table(Rows(np.c_[mem.reference[0],np.ones(len(tr))],0*t.rows.r,mem.reference[1][:,1],0*t.rows.q,t.rows.w),t.alpha)
    c=minimiser(ref,L); tau=residual(ref,L,c); t0=time.time()
    z=prove(t,L,c,tau,log=log,factor=factor)
    if z is None: return "unproven"
    z=tighten(t,L,z,tau,3); a=np.c_[te.x,np.ones(len(te))]; sgn=np.where(a@c>0,1,-1); A=a*sgn[:,None]; ok=(sgn>0)==(te.y==1)
    lo=-Dual(t,L,z,tau,3).upper(-A)
    # attacks: sampled members
    rng=np.random.default_rng(0); ms=mem.sample(rng,100); X=np.stack([np.c_[m[0],np.ones(len(tr))] for m in ms]); Y=np.stack([m[1][:,1] for m in ms])
    th=fits(L,X,Y,t.rows.w,t.alpha,np.broadcast_to(c,(len(ms),len(c))))
    low=(A@th.T).min(axis=1)
    return "clean",100*ok.mean(),"sampled",100*np.mean((low>0)&ok),"cert",100*np.mean((lo>0)&ok),"viol",int((low<lo).sum()),int(((th<z.low)|(th>z.high)).sum()),time.time()-t0
if __name__=="__main__":
    for nm,th in [("linf",mc.LInf(.05)),("flip1",mc.LabelFlips(1)),("flip3",mc.LabelFlips(3)),("budget",mc.Budget(mc.LInf(.2),rows=3)),("l2",mc.L2(.1)),("l1",mc.L1(.1)),("both",mc.LInf(.01)&mc.LabelFlips(1)),("both2",mc.Budget(mc.LInf(.1),rows=2)&mc.LabelFlips(1))]:
        for s in range(2): print(nm,s,go("two-moons",th,1.,s))
