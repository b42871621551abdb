//! Hand-made programs.
