//! The `hutch` binary. It reads the command line and the configuration and wires the tiers together; what it starts lives in them.

mod config;
mod doctor;
mod https;
mod keys;
mod node;
mod prove;
mod sandboxes;
mod serve;
mod templates;
mod tls;
mod welcome;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ServeFlags};

/// Exit code for a configuration that cannot work (sysexits' EX_USAGE).
const EX_USAGE: u8 = 64;

/// Self-hosted, E2B-compatible sandboxes.
#[derive(Debug, Parser)]
#[command(name = "hutch", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Args)]
struct Common {
    /// Configuration file (TOML). Every setting can also be given by environment, `HUTCH_<SETTING>`.
    #[arg(long, env = "HUTCH_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where sandboxes, templates and the database live [default: ./.hutch].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and sandbox traffic on one listener.
    Serve {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        flags: ServeFlags,
        /// Prove at start that a sandbox runs, and print how to use this server.
        #[arg(long)]
        welcome: bool,
    },
    /// Make, list and revoke API keys.
    Key {
        #[command(subcommand)]
        command: keys::KeyCommand,
    },
    /// Import and list templates.
    Template {
        #[command(subcommand)]
        command: templates::TemplateCommand,
    },
    /// Operate on what runs without a server.
    Sandbox {
        #[command(subcommand)]
        command: sandboxes::SandboxCommand,
    },
    /// Say what this host can do, which isolation follows, and what to install for more.
    Doctor {
        #[command(flatten)]
        common: Common,
    },
    /// Check or show the configuration in force.
    Config {
        #[command(flatten)]
        common: Common,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let common = cli.command.common().clone();
    let flags =
        if let Command::Serve { flags, .. } = &cli.command { flags.clone() } else { ServeFlags::default() };
    let config = match Config::load(common.config.as_deref(), common.data_dir.as_deref(), flags) {
        Ok(config) => config,
        Err(problems) => {
            for problem in problems {
                eprintln!("hutch: {problem}");
            }
            return ExitCode::from(EX_USAGE);
        }
    };
    init_logs(&config);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("hutch: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.command, config)) {
        Ok(code) => code,
        Err(error) => {
            // One line that says what to do; the chain of causes belongs to it.
            eprintln!("hutch: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn common(&self) -> &Common {
        match self {
            Self::Serve { common, .. } | Self::Doctor { common } | Self::Config { common } => common,
            Self::Key { command } => command.common(),
            Self::Template { command } => command.common(),
            Self::Sandbox { command } => command.common(),
        }
    }
}

async fn run(command: Command, config: Config) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve { welcome, .. } => serve::serve(config, welcome).await.map(|()| ExitCode::SUCCESS),
        Command::Key { command } => keys::run(command, &config).await.map(|()| ExitCode::SUCCESS),
        Command::Template { command } => templates::run(command, &config).await.map(|()| ExitCode::SUCCESS),
        Command::Sandbox { command } => sandboxes::run(command, &config).await.map(|()| ExitCode::SUCCESS),
        Command::Doctor { .. } => {
            Ok(if doctor::run(&config) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Config { .. } => {
            print!("{}", config.to_toml()?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn init_logs(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log).unwrap_or_else(|_| "info".into());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if config.log_json {
        logs.json().init();
    } else {
        logs.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
    }
}
