from t2 import setup
from t1 import *
import mibp_cert.fitted.dual as D, time, cProfile, pstats
L=SCORE_LOSSES["cross-entropy"]
t,a,y=setup("breast-cancer",.01,.02,0); c=minimiser(t,L); tau=residual(t,L,c)
s=t.rows.x@c; z=Ranges(c-.01,c+.01,s-.1,s+.1)
import sys
for cells in (2_000_000,400_000,100_000,40_000):
    D.CELLS=cells; t0=time.process_time(); all_bounds(t,L,z,tau,0); t1=time.process_time(); all_bounds(t,L,z,tau,2); print(cells,"rounds0",t1-t0,"rounds2",time.process_time()-t1)
D.CELLS=100_000
pr=cProfile.Profile(); pr.enable(); all_bounds(t,L,z,tau,2); pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(12)
