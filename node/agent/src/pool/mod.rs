//! Instances: booting them, keeping some ready, handing them out.
//!
//! All instances come from here. A request takes a ready one from its shelf, or waits for the next boot of its build
//! and size, in order of arrival. The number of boots at a time is bounded; refills begin only when nobody waits.

mod boot;
mod plan;
mod shelf;

use std::collections::HashMap;
use std::sync::Arc;

use hutch_types::{BuildId, InstanceId, Resources};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::error::{StartError, chain};
use crate::memory::{host_memory, is_short};
use crate::shared::Shared;
use plan::{Limits, Next};
use shelf::{Ready, Shelf, Waiter};

pub(crate) use shelf::Warm;

/// What instances on one shelf have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub build: BuildId,
    pub resources: Resources,
}

/// The warm pool of one build and size, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStatus {
    /// The build.
    pub build: BuildId,
    /// The size of its instances.
    pub resources: Resources,
    /// Instances wanted ready.
    pub target: usize,
    /// Instances ready.
    pub ready: usize,
    /// Instances booting, for the shelf or for requests.
    pub booting: usize,
    /// Requests waiting for an instance.
    pub waiting: usize,
}

/// All shelves.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Wakes the task that looks at times: quiet periods, pauses, memory.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    shelves: HashMap<Key, Shelf>,
    next_ticket: u64,
    waiting: usize,
    pressure: bool,
}

impl Pool {
    /// An empty pool. [`Pool::spawn_keeper`] starts its background work.
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, state: Mutex::default(), changed: Notify::new() })
    }

    /// An instance for one request and whether it stood ready. Ends early when `cancel` is.
    pub async fn acquire(
        self: &Arc<Self>,
        key: Key,
        cancel: &CancellationToken,
    ) -> Result<(Warm, bool), StartError> {
        let mut dead = Vec::new();
        let claimed = self.claim_or_queue(key, &mut dead);
        for warm in dead {
            self.shared.reap_behind(warm.instance);
        }
        self.schedule();
        let mut waiting = match claimed? {
            Claim::Ready(warm) => return Ok((warm, true)),
            Claim::Wait(waiting) => waiting,
        };
        let limit = self.shared.config.queue_timeout;
        tokio::select! {
            biased;
            result = &mut waiting.rx => result.unwrap_or(Err(StartError::Lost)).map(|warm| (warm, false)),
            () = cancel.cancelled() => Err(StartError::Stopped),
            () = self.shared.closing.cancelled() => Err(StartError::Draining),
            () = tokio::time::sleep(limit) => Err(StartError::QueueTimedOut(limit)),
        }
    }

    fn claim_or_queue(self: &Arc<Self>, key: Key, dead: &mut Vec<Warm>) -> Result<Claim, StartError> {
        let state = &mut *self.state.lock();
        if self.shared.closing.is_cancelled() {
            return Err(StartError::Draining);
        }
        let shelf = state.shelves.entry(key).or_default();
        while let Some(ready) = shelf.ready.pop_front() {
            if ready.warm.is_alive() {
                shelf.quiet_until = Some(Instant::now() + self.shared.config.pool.refill_quiet);
                return Ok(Claim::Ready(ready.warm));
            }
            dead.push(ready.warm);
        }
        let limit = self.shared.config.max_queued_starts;
        if state.waiting >= limit {
            return Err(StartError::QueueFull { limit });
        }
        let (tx, rx) = oneshot::channel();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting += 1;
        shelf.waiting.push_back(Waiter { ticket, tx });
        Ok(Claim::Wait(Waiting { pool: self.clone(), key, ticket, rx }))
    }

    /// Begins all boots that are due, and leaves those that time alone will make due to the keeper.
    fn schedule(self: &Arc<Self>) {
        if self.begin_due().is_some() {
            self.changed.notify_one();
        }
    }

    /// Begins all boots that are due. Returns when to ask again, if time alone will make more due.
    fn begin_due(self: &Arc<Self>) -> Option<Instant> {
        let mut boots = Vec::new();
        let wake = {
            let state = &mut *self.state.lock();
            if self.shared.closing.is_cancelled() {
                return None;
            }
            state.shelves.retain(|_, shelf| !shelf.is_idle());
            let limits = Limits {
                starts: self.shared.config.max_concurrent_starts,
                refills: self.shared.config.pool.max_concurrent_refill,
                pressure: state.pressure,
            };
            loop {
                let (keys, views): (Vec<Key>, Vec<_>) =
                    state.shelves.iter().map(|(k, s)| (*k, s.view())).unzip();
                match plan::next(&views, limits, Instant::now()) {
                    Next::Boot(index) => {
                        let Some((key, shelf)) =
                            keys.get(index).and_then(|key| Some((*key, state.shelves.get_mut(key)?)))
                        else {
                            break None;
                        };
                        shelf.booting += 1;
                        boots.push(key);
                    }
                    Next::WaitUntil(time) => break Some(time),
                    Next::Rest => break None,
                }
            }
        };
        for key in boots {
            boot::spawn(self, key);
        }
        wake
    }

    /// A boot for `key` has ended.
    fn booted(self: &Arc<Self>, key: Key, result: Result<Warm, StartError>) {
        let surplus = {
            let state = &mut *self.state.lock();
            let shelf = state.shelves.entry(key).or_default();
            shelf.booting = shelf.booting.saturating_sub(1);
            match result {
                Ok(warm) => {
                    shelf.note_success();
                    self.place(state, key, warm)
                }
                Err(error) => {
                    // Of those that wait, as many as there were boots counted on this one.
                    let failed =
                        if shelf.waiting.len() > shelf.booting { shelf.waiting.pop_front() } else { None };
                    match failed {
                        Some(waiter) => {
                            state.waiting = state.waiting.saturating_sub(1);
                            // Whoever left meanwhile does not miss the error.
                            waiter.tx.send(Err(error)).unwrap_or_default();
                        }
                        None => {
                            let pause = shelf.note_failure(Instant::now());
                            tracing::warn!(
                                build = %key.build, error = chain(&error), pause_s = pause.as_secs(),
                                "could not refill the warm pool"
                            );
                        }
                    }
                    None
                }
            }
        };
        if let Some(warm) = surplus {
            self.shared.reap_behind(warm.instance);
        }
        self.schedule();
    }

    /// Gives a warm instance to who waits first, else to the shelf; hands it back when nobody wants it.
    fn place(self: &Arc<Self>, state: &mut State, key: Key, mut warm: Warm) -> Option<Warm> {
        let shelf = state.shelves.entry(key).or_default();
        while let Some(waiter) = shelf.waiting.pop_front() {
            state.waiting = state.waiting.saturating_sub(1);
            match waiter.tx.send(Ok(warm)) {
                Ok(()) => return None,
                Err(Ok(back)) => warm = back,
                Err(Err(_)) => return None,
            }
        }
        if shelf.has_room() && !state.pressure {
            shelf.ready.push_back(self.watched(key, warm));
            None
        } else {
            Some(warm)
        }
    }

    /// Takes what an earlier daemon's pool left. Kept until its shelf's target is known, at most the grace period.
    pub fn adopt(self: &Arc<Self>, warm: Warm) {
        let spec = warm.instance.spec();
        let key = Key { build: spec.build_id, resources: spec.resources };
        let ready = self.watched(key, warm);
        self.state.lock().shelves.entry(key).or_default().ready.push_back(ready);
    }

    /// Watches an instance while it is on a shelf: one that dies there is removed and replaced.
    fn watched(self: &Arc<Self>, key: Key, warm: Warm) -> Ready {
        let (pool, instance, off) = (self.clone(), warm.instance.clone(), CancellationToken::new());
        let guard = off.clone().drop_guard();
        self.shared.supervisor.spawn("warm", async move {
            tokio::select! {
                _ = instance.exited() => pool.died(key, &instance.spec().id),
                () = off.cancelled() => {}
                () = pool.shared.closing.cancelled() => {}
            }
        });
        Ready { warm, _watch: guard }
    }

    fn died(self: &Arc<Self>, key: Key, id: &InstanceId) {
        let dead = {
            let mut state = self.state.lock();
            let Some(shelf) = state.shelves.get_mut(&key) else { return };
            let Some(index) = shelf.ready.iter().position(|r| r.warm.id() == id) else { return };
            shelf.note_failure(Instant::now());
            shelf.ready.remove(index)
        };
        tracing::warn!(instance = %id, build = %key.build, "an instance of the warm pool died");
        if let Some(ready) = dead {
            self.shared.reap_behind(ready.warm.instance);
        }
        self.schedule();
    }

    /// Sets how many instances of `key` are kept ready. Surplus ones are ended.
    pub fn set_target(self: &Arc<Self>, key: Key, target: usize) {
        let surplus = {
            let mut state = self.state.lock();
            let shelf = state.shelves.entry(key).or_default();
            shelf.target = Some(target);
            shelf.quiet_until = None;
            let keep = target.min(shelf.ready.len());
            shelf.ready.split_off(keep)
        };
        self.end(surplus);
        self.schedule();
    }

    /// Sets all targets to zero.
    pub fn drain(self: &Arc<Self>) {
        let keys: Vec<Key> = self.state.lock().shelves.keys().copied().collect();
        for key in keys {
            self.set_target(key, 0);
        }
    }

    /// All shelves, as they are now.
    pub fn status(&self) -> Vec<PoolStatus> {
        let state = self.state.lock();
        let status = |(key, shelf): (&Key, &Shelf)| PoolStatus {
            build: key.build,
            resources: key.resources,
            target: shelf.target.unwrap_or(0),
            ready: shelf.ready.len(),
            booting: shelf.booting,
            waiting: shelf.waiting.len(),
        };
        state.shelves.iter().map(status).collect()
    }

    fn end(&self, surplus: impl IntoIterator<Item = Ready>) {
        for ready in surplus {
            tracing::debug!(instance = %ready.warm.id(), "ending a surplus instance of the warm pool");
            self.shared.reap_behind(ready.warm.instance);
        }
    }

    /// Starts the task that refills in time, looks at the host's memory and ends adopted instances that nobody wants.
    pub fn spawn_keeper(self: &Arc<Self>) {
        let pool = self.clone();
        self.shared.supervisor.spawn("pool", async move {
            let config = &pool.shared.config.pool;
            let mut check = tokio::time::interval(config.check_interval);
            check.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut grace = Some(Instant::now() + config.adoption_grace);
            loop {
                let far = Instant::now() + config.check_interval;
                let wake = pool.begin_due();
                tokio::select! {
                    () = pool.shared.closing.cancelled() => return,
                    () = pool.changed.notified() => {}
                    () = tokio::time::sleep_until(wake.unwrap_or(far)) => {}
                    _ = check.tick() => pool.look_at_memory(),
                }
                if grace.is_some_and(|end| end <= Instant::now()) {
                    grace = None;
                    pool.end_unwanted();
                }
            }
        });
    }

    /// Ends ready instances of shelves for which nobody has set a target.
    fn end_unwanted(&self) {
        let surplus: Vec<Ready> = {
            let mut state = self.state.lock();
            let unwanted = state.shelves.values_mut().filter(|s| s.target.is_none());
            unwanted.flat_map(|s| std::mem::take(&mut s.ready)).collect()
        };
        self.end(surplus);
    }

    /// Under pressure half of each shelf goes at every look.
    fn look_at_memory(&self) {
        let Some(memory) = host_memory(&self.shared.config.meminfo) else { return };
        let min = self.shared.config.pool.min_free_memory_mib;
        let surplus: Vec<Ready> = {
            let mut state = self.state.lock();
            let pressure = is_short(memory.available_mib, min, state.pressure);
            if pressure != state.pressure {
                let available_mib = memory.available_mib;
                tracing::info!(
                    pressure,
                    available_mib,
                    min_free_memory_mib = min,
                    "memory for warm instances"
                );
            }
            state.pressure = pressure;
            if !pressure {
                return;
            }
            state.shelves.values_mut().flat_map(|s| s.ready.split_off(s.ready.len() / 2)).collect()
        };
        self.end(surplus);
    }
}

enum Claim {
    Ready(Warm),
    Wait(Waiting),
}

/// A place in the queue. Dropping it leaves the queue and returns an instance that arrived in the same moment.
struct Waiting {
    pool: Arc<Pool>,
    key: Key,
    ticket: u64,
    rx: oneshot::Receiver<Result<Warm, StartError>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.rx.close();
        let surplus = {
            let state = &mut *self.pool.state.lock();
            if let Some(shelf) = state.shelves.get_mut(&self.key) {
                let before = shelf.waiting.len();
                shelf.waiting.retain(|w| w.ticket != self.ticket);
                state.waiting = state.waiting.saturating_sub(before - shelf.waiting.len());
            }
            match self.rx.try_recv() {
                Ok(Ok(warm)) => self.pool.place(state, self.key, warm),
                Ok(Err(_)) | Err(_) => None,
            }
        };
        if let Some(warm) = surplus {
            self.pool.shared.reap_behind(warm.instance);
        }
        self.pool.changed.notify_one();
    }
}
