"""scikit-learn estimators: train with proven bounds, predict a certified class or abstain.

`predict` of a classifier returns a class only where every model that the training could have produced gives it, whatever
dataset of the threat was really used. `score` is certified accuracy, so that a grid search looks for what can be proven.
"""

from mibp_cert.estimator.fitted import CertifiedLogisticRegression, CertifiedRidge
from mibp_cert.estimator.trained import CertifiedClassifier, CertifiedRegressor
