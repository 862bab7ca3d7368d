import sys; sys.path.insert(0,'/tmp/fit/src')
import mibp_cert as mc, numpy as np, time
from mibp_cert.doors import certify_fit
from mibp_cert.fitted import Fitted
print(mc.__file__)
for th in (mc.LInf(.05),mc.LabelFlips(1),mc.LabelFlips(3),mc.Budget(mc.LInf(.2),rows=3),mc.L2(.03)):
    t0=time.time(); r=certify_fit(mc.two_moons(0),th,Fitted(C=1.)); print(th.words(),r.to_json()["test"],r.to_json()["attack"],time.time()-t0)
r=certify_fit(mc.diabetes(0),mc.LInf(.01),Fitted(loss="squared-error")); print(r.to_json())
