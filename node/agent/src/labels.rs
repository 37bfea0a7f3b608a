//! What the agent notes on an instance, to know after a restart whose it is. No secret goes here.

use std::collections::BTreeMap;
use std::sync::Arc;

use hutch_types::{BuildId, Ingress, SandboxId, TemplateId};

const ROLE: &str = "hutch.role";
const SANDBOX: &str = "hutch.sandbox";
const TEMPLATE: &str = "hutch.template";
const BUILD: &str = "hutch.build";
const INGRESS: &str = "hutch.ingress";
const LOGS: &str = "hutch.logs";

/// Whose an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody's yet; nothing has run in it.
    Pool,
    /// A sandbox's, from before anything of the sandbox reached it.
    Sandbox(SandboxLabels),
}

/// What is noted of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxLabels {
    /// Which one.
    pub sandbox_id: SandboxId,
    /// Its template.
    pub template_id: TemplateId,
    /// Its build.
    pub build_id: BuildId,
    /// Log lines up to this number of its envd have been taken.
    pub logs_cursor: u64,
    /// Who may reach its ports: with the hash of the token, which is no secret.
    pub ingress: Arc<Ingress>,
}

impl Owner {
    /// As labels of an instance.
    pub fn to_labels(&self) -> BTreeMap<String, String> {
        let pairs = match self {
            Self::Pool => vec![(ROLE, "pool".to_owned())],
            Self::Sandbox(s) => vec![
                (ROLE, "sandbox".to_owned()),
                (SANDBOX, s.sandbox_id.to_string()),
                (TEMPLATE, s.template_id.to_string()),
                (BUILD, s.build_id.to_string()),
                (LOGS, s.logs_cursor.to_string()),
                // Plain data with text keys: it always has a form in JSON, and an empty one would not be read back as "anybody".
                (INGRESS, serde_json::to_string(&*s.ingress).unwrap_or_default()),
            ],
        };
        pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    /// From labels; `None` when they are not (or not fully) the agent's.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Option<Self> {
        let get = |key: &str| labels.get(key).map(String::as_str);
        match get(ROLE)? {
            "pool" => Some(Self::Pool),
            "sandbox" => Some(Self::Sandbox(SandboxLabels {
                sandbox_id: get(SANDBOX)?.parse().ok()?,
                template_id: get(TEMPLATE)?.parse().ok()?,
                build_id: get(BUILD)?.parse().ok()?,
                logs_cursor: get(LOGS)?.parse().ok()?,
                // Unreadable is not "anybody may come". Instances of versions that had no such label were open to anybody.
                ingress: match get(INGRESS) {
                    Some(text) => serde_json::from_str(text).ok().map(Arc::new)?,
                    None => Arc::default(),
                },
            })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hutch_types::{Secret, TokenHash};

    use super::*;

    #[test]
    fn labels_are_read_back() {
        let sandbox = Owner::Sandbox(SandboxLabels {
            sandbox_id: SandboxId::random(),
            template_id: TemplateId::random(),
            build_id: BuildId::random(),
            logs_cursor: 7,
            ingress: Arc::new(Ingress {
                traffic_token: Some(TokenHash::of(&Secret::new("t"))),
                mask_request_host: Some("a\"b:${PORT}".to_owned()),
                https_ports: [8443].into(),
            }),
        });
        for owner in [Owner::Pool, sandbox] {
            assert_eq!(Owner::from_labels(&owner.to_labels()), Some(owner));
        }
    }

    #[test]
    fn incomplete_labels_belong_to_nobody() {
        let mut labels = Owner::Sandbox(SandboxLabels {
            sandbox_id: SandboxId::random(),
            template_id: TemplateId::random(),
            build_id: BuildId::random(),
            logs_cursor: 0,
            ingress: Arc::default(),
        })
        .to_labels();
        let open = labels.clone();
        for broken in ["", "{", "{\"traffic_token\":\"x\"}"] {
            labels.insert(INGRESS.to_owned(), broken.to_owned());
            assert_eq!(Owner::from_labels(&labels), None, "{broken}");
        }
        labels = open.clone();
        labels.remove(INGRESS);
        assert_eq!(Owner::from_labels(&labels), Owner::from_labels(&open), "an older version's");
        labels.remove(TEMPLATE);
        assert_eq!(Owner::from_labels(&labels), None);
        assert_eq!(Owner::from_labels(&BTreeMap::new()), None);
    }
}
