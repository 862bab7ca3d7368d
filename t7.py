import sys; sys.path.insert(0,'/tmp/fit/src')
import numpy as np, warnings
from mibp_cert.fitted.losses import *; from mibp_cert.fitted.minimum import *
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
rng=np.random.default_rng(0)
for trial in range(3):
    n,d=80,4; X=rng.normal(size=(n,d)); y=(X@rng.normal(size=d)+.5*rng.normal(size=n)>0).astype(float); x=np.c_[X,np.ones(n)]; w=np.ones(n)
    for C in (.1,1,100):
        al=np.r_[np.full(d,1/C),0.]; th=minimise(x,y,w,al,SCORE_LOSSES["cross-entropy"]); m=LogisticRegression(C=C,tol=1e-12,max_iter=10000).fit(X,y); print(np.abs(th-np.r_[m.coef_[0],m.intercept_]).max(),tilt(x,y,w,al,SCORE_LOSSES["cross-entropy"],th).max(),end=" | ")
        t=X@rng.normal(size=d)+rng.normal(size=n); th=minimise(x,t,w,al,SCORE_LOSSES["squared-error"]); m=Ridge(alpha=1/C,tol=1e-14).fit(X,t); print(np.abs(th-np.r_[m.coef_,m.intercept_]).max(),end=" | ")
        al=np.full(d+1,1/C); th=minimise(x,y,w,al,SCORE_LOSSES["squared-hinge"]); m=LinearSVC(C=C,tol=1e-12,max_iter=1000000,dual=False).fit(X,y); print(np.abs(th-np.r_[m.coef_[0],m.intercept_]).max(),tilt(x,y,w,al,SCORE_LOSSES["squared-hinge"],th).max(),end=" | ")
        al=np.r_[np.full(d,1/C),0.];th=minimise(x,t,w,al,SCORE_LOSSES["huber"]); print("hub",tilt(x,t,w,al,SCORE_LOSSES["huber"],th).max())
X2=np.stack([x+.1*rng.normal(size=x.shape) for _ in range(50)]); import time; t0=time.time(); th=minimise(X2,np.broadcast_to(y,(50,n)),w,al,SCORE_LOSSES["cross-entropy"]); print(th.shape,time.time()-t0, np.abs(th[3]-minimise(X2[3],y,w,al,SCORE_LOSSES["cross-entropy"])).max())
