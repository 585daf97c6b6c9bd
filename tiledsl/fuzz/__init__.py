"""Random kernels, compared between everything that can run them: `python -m tiledsl fuzz`.

`generate` draws a kernel as text of the language, with its arguments and launch options; `levels`
runs it in fp64 (`reference`), in the interpreter, in the simulator of specialised programs, as
emitted text on the CPU and on the device; `shrink` makes a failing one smaller.
"""
