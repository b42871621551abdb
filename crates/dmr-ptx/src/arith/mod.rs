//! Arithmetic, conversion and bit instructions, on the lanes of registers.
