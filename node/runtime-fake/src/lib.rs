//! A runtime without isolation, for tests: every instance is the real envd in this process, on a port of 127.0.0.1.
//!
//! [`FakeKernel`] plays the host: instances live in it, on threads of its own, and outlive every [`FakeRuntime`] as
//! real ones outlive the daemon. A second runtime on the same kernel is a restarted daemon. Tests break things through
//! the kernel: steps that fail, stall or take long ([`FakeKernel::inject`]), instances that die, get lost or do not
//! answer.
//!
//! Nothing is limited, no network policy is enforced, and processes run as the user of the test.

mod fault;
mod kernel;
mod machine;
mod processes;
mod runtime;

pub use fault::{Fault, Step};
pub use kernel::{FakeKernel, Guest};
pub use machine::MachineView;
pub use runtime::{FakeInstance, FakeRuntime};
