//! Which CPUs an instance runs on.
//!
//! The quota alone bounds what an instance uses, but programs count the CPUs that they may run on (`nproc`, `make -j`, thread
//! pools, BLAS) and start as many threads as the host has CPUs, which then share the quota of two. So an instance is given as
//! many CPUs as it has paid for. Which ones follows from its slot, as slots are handed out in turn: neighbours in time are
//! on different CPUs, and a restarted daemon needs to know nothing.
//!
//! What it costs: two busy instances can meet on one CPU while another one is idle. Operators who want every CPU used before
//! anything else turn it off.

use rustix::thread::{CpuSet, sched_getaffinity};

/// The CPUs that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus(Vec<usize>);

impl Cpus {
    /// Reads them; none, which restricts nobody, when that cannot be done.
    pub fn detect() -> Self {
        let set = sched_getaffinity(None).unwrap_or_else(|error| {
            tracing::warn!(%error, "the CPUs cannot be counted: sandboxes run on all of them");
            CpuSet::new()
        });
        Self((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
    }

    /// Restricts nobody.
    pub fn unrestricted() -> Self {
        Self(Vec::new())
    }

    /// The list for the instance in slot `slot`; `None` when it may use all.
    pub fn share(&self, slot: u32, wanted: u32) -> Option<String> {
        let there = self.0.len();
        let wanted = usize::try_from(wanted).ok().filter(|wanted| *wanted > 0 && *wanted < there)?;
        let first = usize::try_from(slot).ok()?.wrapping_mul(wanted);
        let mut chosen: Vec<usize> =
            (0..wanted).filter_map(|n| self.0.get(first.wrapping_add(n) % there).copied()).collect();
        chosen.sort_unstable();
        Some(chosen.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_spread_over_all_cpus() {
        let cpus = Cpus(vec![0, 1, 2, 5, 6]);
        let shares: Vec<String> = (0..4).map(|slot| cpus.share(slot, 2).unwrap()).collect();
        assert_eq!(shares, ["0,1", "2,5", "0,6", "1,2"]);
        assert_eq!(cpus.share(u32::MAX, 4).unwrap().split(',').count(), 4);
    }

    #[test]
    fn who_wants_all_or_more_is_not_restricted() {
        let cpus = Cpus(vec![0, 1]);
        assert_eq!((cpus.share(3, 2), cpus.share(3, 8), cpus.share(3, 0)), (None, None, None));
        assert_eq!(cpus.share(3, 1).as_deref(), Some("1"));
        assert_eq!(Cpus::unrestricted().share(0, 1), None);
    }

    #[test]
    fn this_process_may_use_some() {
        assert!(!Cpus::detect().0.is_empty());
    }
}
