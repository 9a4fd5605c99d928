"""What `rawkern.elementwise` and `rawkern.reduction` are made of: parameters, derivatives, sources, launches."""
