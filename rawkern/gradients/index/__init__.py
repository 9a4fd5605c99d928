"""Index reasoning: one affine form, one set of guards, five questions.

`affine.poly` is the form of an integer, `guards.guards` what holds where it is used, `threads` the digits that tell
threads apart. The questions: `injective` (does an element say which thread accesses it?), `disjoint` (can two threads
meet in one?), `ranges.bounds` (what can an index be?), `ranges.Ranges.implies` (is a number at least 1 there?),
`covers` (which elements are accessed for certain?). All answers are of integers that do not overflow.
"""
