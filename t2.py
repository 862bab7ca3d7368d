from t1 import *
from att import *
from mibp_cert.data.builtin import load
def setup(name,eps,C,seed):
    sp=load(name,seed); tr,te=sp.train,sp.test
    x=np.c_[tr.x,np.ones(len(tr))]; r=np.c_[np.full_like(tr.x,eps),np.zeros(len(tr))]
    n=len(tr)
    t=Table(Rows(x,r,tr.y.astype(float),np.zeros(n),np.ones(n)), np.r_[np.full(tr.x.shape[1],1/C),0.0])
    return t,np.c_[te.x,np.ones(len(te))],te.y
L=SCORE_LOSSES["cross-entropy"]
if __name__=="__main__":
  for name,eps,C in [("iris2",.3,.02),("two-moons",.1,.1),("two-moons",.05,1.)]:
      for seed in range(5):
          t,a,y=setup(name,eps,C,seed); c=minimiser(t,L); tau=residual(t,L,c)
          sgn=np.where(a@c>0,1,-1); A=a*sgn[:,None]; ok=(sgn>0)==(y==1)
          b,th=attack(L,t,c,A)
          z=prove(t,L,c,tau); 
          if z is None: print("unproven"); continue
          z=tighten(t,L,z,tau,4); out=[]
          for rounds in (1,2,4):
              lo=-Dual(t,L,z,tau,rounds).upper(-A); out.append(100*np.mean((lo>0)&ok))
          gap=((A@c)-lo)/((A@c)-b)
          print(name,seed,"clean",100*ok.mean(),"att",100*np.mean((b>0)&ok),"cert",out,"ratio of radii",gap.mean(),gap.max(), "viol",(b<lo).sum(), ((th<z.low)|(th>z.high)).sum())
  