"""Parameters as functions of the data's own noise, to first order, with a remainder."""

from mibp_cert.engines.relational.engine import LinearPart, RelationalEngine, linear_part, output_range, symbol_form
from mibp_cert.engines.relational.forms import Case, CaseSet, RelationalSet, cases_of, states_of
