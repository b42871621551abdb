//! Tests of the instructions between lanes.
