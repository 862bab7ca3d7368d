import numpy as np
def fits(loss,x,y,w,alpha,theta0,iters=30):
    """many fits at once: x (Q,n,P), y (Q,n)"""
    th=np.array(theta0)
    for _ in range(iters):
        s=np.einsum("qnp,qp->qn",x,th); psi=loss.psi(y,s); k=np.maximum(loss.slope(y,s),1e-9)
        g=alpha*th+np.einsum("qn,qnp->qp",w*psi,x)
        m=np.matmul((x*(w*k)[...,None]).transpose(0,2,1),x)+np.diag(alpha)
        st=np.linalg.solve(m,g[...,None])[...,0]
        n=np.abs(st).max(axis=1,keepdims=True); th=th-st*np.minimum(1,4/np.maximum(n,1e-9))
        if n.max()<1e-11: break
    return th
def attack(loss,t,c,a,rounds=6):
    """smallest a·θ for each query row of a"""
    R=t.rows; q=len(a); th=np.broadcast_to(c,(q,len(c))).copy(); x=np.broadcast_to(R.x,(q,*R.x.shape)).copy()
    best=(a*th).sum(1)
    for _ in range(rounds):
        s=np.einsum("qnp,qp->qn",x,th); psi=loss.psi(R.y,s); k=loss.slope(R.y,s)
        m=np.matmul((x*(R.w*k)[...,None]).transpose(0,2,1),x)+np.diag(t.alpha)
        u=-np.linalg.solve(m,a[...,None])[...,0]
        om=np.einsum("qnp,qp->qn",x,u)
        tt=psi[...,None]*u[:,None,:]+(k*om)[...,None]*th[:,None,:]
        x=R.x-R.r*np.sign(tt)
        th=fits(loss,x,np.broadcast_to(R.y,s.shape),R.w,t.alpha,th)
        best=np.minimum(best,(a*th).sum(1))
    return best,th
