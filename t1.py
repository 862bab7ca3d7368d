import numpy as np, sys, time
sys.path.insert(0,'/tmp/fit/src')
import mibp_cert as mc
from mibp_cert.fitted.losses import *
from mibp_cert.fitted.table import *
from mibp_cert.fitted.prove import *
from mibp_cert.fitted.dual import *
def run(name="two_moons", eps=.05, C=1.0, seed=0, log=None):
    from mibp_cert.data.builtin import load as LB; sp=LB(name,seed); tr,te=sp.train,sp.test
    x=np.c_[tr.x,np.ones(len(tr))]; r=np.c_[np.full_like(tr.x,eps),np.zeros(len(tr))]
    y=tr.y.astype(float); n=len(y)
    t=Table(Rows(x,r,y,np.zeros(n),np.ones(n)), np.r_[np.full(tr.x.shape[1],1/C),0.0])
    L=SCORE_LOSSES["cross-entropy"]; t0=time.time()
    c=minimiser(t,L); tau=residual(t,L,c)
    z=prove(t,L,c,tau,log=log)
    if z is None: return "not proven", time.time()-t0
    t1=time.time(); z=tighten(t,L,z,tau); d=Dual(t,L,z,tau,3)
    a=np.c_[te.x,np.ones(len(te))]; sgn=np.where(a@c>0,1,-1)
    m=-d.upper(-a*sgn[:,None])
    cert=(m>0)&((sgn>0)==(te.y==1))
    return n, "clean",100*np.mean((sgn>0)==(te.y==1)),"cert",100*cert.mean(), tau.max(), t1-t0, time.time()-t1
if __name__=="__main__":
    for e in map(float,sys.argv[2].split(",")):
        for s in range(int(sys.argv[4]) if len(sys.argv)>4 else 1): print(e,s,run(sys.argv[1],e,float(sys.argv[3]),s,log=print))
