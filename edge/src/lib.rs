//! The one listener of Hutch and the proxy behind it.
//!
//! [`front`] accepts connections and tells sandbox traffic from API calls; [`target`] decides which sandbox and port a request means;
//! [`proxy`] forwards it, [`dial`] connects to the server inside, and `access` guards private sandboxes, and [`answer`] words the errors that SDKs and people see.
//!
//! The edge knows nothing of templates, teams or runtimes: it asks a [`hutch_node_api::RouteSource`] where a sandbox is.

pub mod answer;
pub mod dial;
pub mod front;
pub mod proxy;
pub mod target;

mod access;
mod cut;
mod inside_tls;
mod intent;
mod keepalive;
mod linger;
mod outgoing;
mod page;
mod patience;
mod places;
mod request_id;
mod signed;

pub use cut::ClientStream;
pub use front::{Client, Front, FrontConfig};
pub use intent::Asked;
pub use linger::RequestBody;
pub use proxy::Edge;
