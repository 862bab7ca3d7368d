"""Parameters as functions of the data's own noise, to first order, with a remainder."""

from mibp_cert.engines.relational.engine import RelationalEngine
from mibp_cert.engines.relational.outputs import LinearPart, linear_part, symbol_form
from mibp_cert.engines.relational.sets import Case, CaseSet, RelationalSet, cases_of, states_of
