//! Launch recorder: a launch waits for exactly what it must.
