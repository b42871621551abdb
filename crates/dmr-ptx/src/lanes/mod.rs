//! Instructions between the lanes of a warp: shuffles, votes, matrix products.
