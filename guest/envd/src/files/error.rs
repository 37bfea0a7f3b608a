//! What can go wrong with a transfer, and how the client learns of it.

use std::io;
use std::path::PathBuf;

use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::metadata::MetadataError;
use super::multipart::MultipartError;
use super::signature::SignatureError;
use crate::error::HttpError;
use crate::filesystem::dirs::DirsError;
use crate::filesystem::fault::{Fault, reason};
use crate::paths::PathError;
use crate::users::UserError;

/// Why a request to `/files` is not for its sender to make.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    /// A query that cannot be read.
    #[error("{0}")]
    Query(String),
    /// The header has another token.
    #[error("access token present in header but does not match")]
    WrongToken,
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(transparent)]
    User(#[from] UserError),
}

impl From<AccessError> for HttpError {
    fn from(error: AccessError) -> Self {
        let message = error.to_string();
        match error {
            AccessError::Query(_) => Self::bad_request(message),
            AccessError::WrongToken
            | AccessError::Signature(_)
            | AccessError::User(UserError::Unknown(_)) => Self::unauthorized(message),
            AccessError::User(UserError::Read { source, .. }) => {
                Self::internal(format!("{message}: {}", reason(&source)))
            }
        }
    }
}

/// Why an upload failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("invalid metadata: {0}")]
    InvalidMetadata(#[from] MetadataError),
    #[error("unsupported content type '{0}': send multipart/form-data or application/octet-stream")]
    ContentType(String),
    #[error("unsupported content encoding '{0}': send gzip or none")]
    ContentEncoding(String),
    #[error("an upload as application/octet-stream needs the query parameter 'path'")]
    NoPath,
    #[error("a part has no file name and the query no 'path'")]
    NoFileName,
    #[error("'{0}' is there twice in this upload; the first one was written")]
    Duplicate(PathBuf),
    #[error("invalid form: {0}")]
    Multipart(#[from] MultipartError),
    #[error("decompressing the body")]
    Gzip(#[source] io::Error),
    #[error(transparent)]
    Dirs(#[from] DirsError),
    #[error("path '{0}' is a directory")]
    Directory(PathBuf),
    #[error("path '{0}' is not a regular file")]
    NotAFile(PathBuf),
    #[error("opening file '{path}'")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("writing file '{path}'")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("writing the metadata of '{path}'")]
    Metadata {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("not enough disk space available{}", .bytes.map(|b| format!(" for {b} bytes")).unwrap_or_default())]
    NoSpace {
        /// How many bytes the client wanted to write, if it said so.
        bytes: Option<u64>,
    },
    #[error("not enough disk space available for the metadata of the file")]
    NoSpaceForMetadata,
    /// The client went away, or sent nonsense.
    #[error("the body ended early")]
    Body,
    /// The client sends nothing any more.
    #[error("nothing more of the body came for {0} seconds")]
    Idle(u64),
    /// A bug.
    #[error("the upload failed unexpectedly")]
    Crashed,
}

impl From<UploadError> for HttpError {
    fn from(error: UploadError) -> Self {
        let error = match error {
            UploadError::Access(access) => return access.into(),
            other => other,
        };
        let message = error.to_string();
        let because = |source: &io::Error| format!("{message}: {}", reason(source));
        match &error {
            UploadError::Path(_)
            | UploadError::InvalidMetadata(_)
            | UploadError::ContentType(_)
            | UploadError::ContentEncoding(_)
            | UploadError::NoPath
            | UploadError::NoFileName
            | UploadError::Duplicate(_)
            | UploadError::Multipart(_)
            | UploadError::Directory(_)
            | UploadError::NotAFile(_)
            | UploadError::Body
            | UploadError::Dirs(DirsError::NotADirectory(_)) => Self::bad_request(message),
            UploadError::Gzip(source) => Self::bad_request(because(source)),
            UploadError::Dirs(DirsError::Create { source, .. })
            | UploadError::Open { source, .. }
            | UploadError::Write { source, .. }
            | UploadError::Metadata { source, .. } => Self::new(Fault::of(source).status(), because(source)),
            UploadError::NoSpace { .. } | UploadError::NoSpaceForMetadata => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, message)
            }
            UploadError::Idle(_) => Self::new(StatusCode::REQUEST_TIMEOUT, message),
            UploadError::Access(_) | UploadError::Crashed => Self::internal(message),
        }
    }
}

impl IntoResponse for UploadError {
    fn into_response(self) -> Response {
        HttpError::from(self).into_response()
    }
}
