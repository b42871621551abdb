//! PTX text into a module: declarations and instructions with their places in the text.
