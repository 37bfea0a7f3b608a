//! `hutch key`: works on the database, also while the server runs.

use clap::Subcommand;
use hutch_app::keys::{create_key, list_keys, revoke_key};
use hutch_store::{SqliteStore, Store};
use hutch_types::Clock;

use crate::Common;
use crate::config::Config;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and print it, alone. It is shown only this once.
    Create {
        #[command(flatten)]
        common: Common,
        /// Name to tell it by.
        #[arg(long)]
        name: String,
    },
    /// List keys, without the keys themselves.
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Revoke a key at once.
    Revoke {
        #[command(flatten)]
        common: Common,
        /// Its name or id.
        key: String,
    },
}

impl KeyCommand {
    pub fn common(&self) -> &Common {
        match self {
            Self::Create { common, .. } | Self::List { common } | Self::Revoke { common, .. } => common,
        }
    }
}

pub async fn run(command: KeyCommand, config: &Config) -> anyhow::Result<()> {
    let store = SqliteStore::open(&config.database()).await?;
    let clock = Clock::system();
    let team = store.default_team(clock.now()).await?.id;
    match command {
        KeyCommand::Create { name, .. } => {
            println!("{}", create_key(&store, &clock, team, &name).await?.value.expose());
        }
        KeyCommand::List { .. } => {
            println!("{:<24} {:<14} {:<26} {:<26} STATE", "NAME", "KEY", "CREATED", "LAST USED");
            for key in list_keys(&store, team).await? {
                println!(
                    "{:<24} {:<14} {:<26} {:<26} {}",
                    key.name,
                    format!("e2b_{}…{}", key.mask_prefix, key.mask_suffix),
                    key.created_at.to_rfc3339(),
                    key.last_used_at.map_or_else(|| "never".to_owned(), |t| t.to_rfc3339()),
                    key.revoked_at
                        .map_or_else(|| "live".to_owned(), |t| format!("revoked {}", t.to_rfc3339())),
                );
            }
        }
        KeyCommand::Revoke { key, .. } => {
            let revoked = revoke_key(&store, &clock, team, &key).await?;
            println!("revoked {}", revoked.name);
        }
    }
    store.close().await;
    Ok(())
}
