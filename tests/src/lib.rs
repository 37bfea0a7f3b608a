//! Tests of the whole. There is no code here:
//!
//! - `cluster/`: control, node, edge and the real envd in one process on the fake runtime, and the layering rules;
//! - `e2e/`: a running server with real sandboxes and the published SDKs;
//! - `security/`: hostile clients and hostile guests of such a server.
