//! Allocation traces of GPU programs: format, readers, replay, report.
