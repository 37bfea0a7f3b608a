//! Contract and cluster tests on the fake runtime.
