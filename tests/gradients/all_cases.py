"""All kernels of the tests: the files add theirs to `CASES` when they are imported."""

from tests.gradients import (  # noqa: F401
    cases_accessors,
    cases_attention,
    cases_control,
    cases_corners,
    cases_flow,
    cases_groups,
    cases_half,
    cases_inplace,
    cases_locals,
    cases_models,
    cases_objects,
    cases_public,
    cases_rows,
    cases_science,
)
from tests.gradients.cases import CASES as CASES
