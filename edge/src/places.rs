//! How many requests one sandbox may have in flight: the neighbours' share of the listener.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hutch_types::SandboxId;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::answer::{Body, BoxError};

/// Counts requests by sandbox. A request counts until its answer is sent, an upgraded connection until it is closed.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    most: usize,
    taken: Arc<Mutex<HashMap<SandboxId, usize>>>,
}

/// One request's place; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    id: SandboxId,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// A place, while there is one.
    pub(crate) fn enter(&self, id: &SandboxId) -> Option<Place> {
        let mut taken = self.taken.lock();
        let count = taken.entry(id.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place { places: self.clone(), id: id.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&self.id) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.id);
            }
        }
    }
}

/// An answer that keeps its request's place until it is sent.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) inner: Body,
    pub(crate) place: Option<Place>,
}

impl http_body::Body for Placed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.place = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sandbox_has_its_places_and_gets_them_back() {
        let places = Places::new(2);
        let [a, b] =
            ["iabc0123456789xyz000", "iabc0123456789xyz001"].map(|id| id.parse::<SandboxId>().unwrap());
        let held = [places.enter(&a), places.enter(&a)];
        assert!(held.iter().all(Option::is_some) && places.enter(&a).is_none());
        assert!(places.enter(&b).is_some(), "the neighbour is not concerned");
        drop(held);
        assert!(places.enter(&a).is_some());
        assert_eq!(places.taken.lock().len(), 0, "nothing is remembered of sandboxes without requests");
    }
}
