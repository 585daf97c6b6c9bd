"""The graph: types, ops, layouts, text form, verifier, interpreter, passes."""
