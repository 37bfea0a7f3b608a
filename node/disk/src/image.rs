//! Layers and images.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hutch_types::BuildId;
use serde::{Deserialize, Serialize};

use crate::disk::DiskRecord;
use crate::error::{Attempt, DiskError};
use crate::files;
use crate::store::DiskStore;

/// Names a layer by its content: the first 32 hex digits of the SHA-256 of the archive that it was imported from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(String);

/// A text that is not a layer id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid layer id")]
pub struct LayerIdError;

impl LayerId {
    /// Hex digits in an id.
    pub(crate) const LEN: usize = 32;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_digest(digest: &[u8]) -> Self {
        Self(digest.iter().take(Self::LEN / 2).map(|b| format!("{b:02x}")).collect())
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LayerId {
    type Err = LayerIdError;

    fn from_str(text: &str) -> Result<Self, LayerIdError> {
        let valid =
            text.len() == Self::LEN && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if valid { Ok(Self(text.to_owned())) } else { Err(LayerIdError) }
    }
}

impl TryFrom<String> for LayerId {
    type Error = LayerIdError;

    fn try_from(text: String) -> Result<Self, LayerIdError> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> String {
        id.0
    }
}

/// How processes of an image start unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Environment of every process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The user that commands run as.
    pub user: String,
    /// Where commands start.
    pub workdir: String,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self { env: BTreeMap::new(), user: "user".to_owned(), workdir: "/home/user".to_owned() }
    }
}

/// A root filesystem that sandboxes start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The build that made it.
    pub build_id: BuildId,
    /// Its layers, lowest first; at least one.
    pub layers: Vec<LayerId>,
    /// How its processes start.
    pub config: ImageConfig,
}

impl DiskStore {
    /// Records the image of a build. Durable on return; replaces an earlier record of the same build.
    ///
    /// # Errors
    /// [`DiskError::NoLayer`] when a layer is missing, [`DiskError::Config`] when there is none.
    pub fn register_image(
        &self,
        build: BuildId,
        config: ImageConfig,
        layers: Vec<LayerId>,
    ) -> Result<Image, DiskError> {
        let _images = self.inner.images.write();
        if layers.is_empty() {
            return Err(DiskError::Config { what: format!("the image of build {build} has no layers") });
        }
        if let Some(missing) = layers.iter().find(|layer| !self.layer_tree(layer).is_dir()) {
            return Err(DiskError::NoLayer(missing.clone()));
        }
        let image = Image { build_id: build, layers, config };
        files::write_json_durable(&self.image_path(build), &image)?;
        Ok(image)
    }

    /// The image of a build.
    ///
    /// # Errors
    /// [`DiskError::NoImage`] when there is none.
    pub fn image(&self, build: BuildId) -> Result<Image, DiskError> {
        files::read_json(&self.image_path(build))?.ok_or(DiskError::NoImage(build))
    }

    /// All images, in no particular order.
    pub fn images(&self) -> Result<Vec<Image>, DiskError> {
        let mut images = Vec::new();
        for name in files::names(&self.inner.images_dir)? {
            if let Some(build) = name.strip_suffix(".json").and_then(|build| build.parse().ok()) {
                // It may have been removed since the directory was listed.
                images.extend(files::read_json(&self.image_path(build))?);
            }
        }
        Ok(images)
    }

    /// Removes the image of a build, and its layers as far as no other image has them. Removing what is not there is
    /// no error.
    ///
    /// # Errors
    /// [`DiskError::ImageInUse`] while a disk is based on it.
    pub fn remove_image(&self, build: BuildId) -> Result<(), DiskError> {
        let _images = self.inner.images.write();
        let image = match self.image(build) {
            Ok(image) => image,
            Err(DiskError::NoImage(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut kept: Vec<LayerId> = Vec::new();
        for instance in self.disks()? {
            let record: Option<DiskRecord> = files::read_json(&self.record_path(&instance))?;
            if let Some(record) = record {
                if record.build_id == build {
                    return Err(DiskError::ImageInUse { build, instance });
                }
                kept.extend(record.layers);
            }
        }
        let path = self.image_path(build);
        files::absent_is_fine(std::fs::remove_file(&path))
            .attempting(|| format!("remove {}", path.display()))?;
        kept.extend(self.images()?.into_iter().flat_map(|other| other.layers));
        for layer in image.layers.iter().filter(|layer| !kept.contains(layer)) {
            self.remove_layer(layer)?;
        }
        Ok(())
    }

    /// Takes the layer out of sight first, so that a crash in the middle leaves no half layer under its name.
    fn remove_layer(&self, layer: &LayerId) -> Result<(), DiskError> {
        let path = self.inner.layers_dir.join(layer.as_str());
        let doomed = files::temporary_beside(&path);
        files::absent_is_fine(std::fs::rename(&path, &doomed))
            .and_then(|()| files::absent_is_fine(std::fs::remove_dir_all(&doomed)))
            .attempting(|| format!("remove layer {layer}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_ids_cannot_leave_their_directory() {
        for bad in ["", "..", "../../../etc/passwd/aaaaaaaaaaaaaa", "0123456789abcdef0123456789abcdeF"] {
            assert_eq!(bad.parse::<LayerId>(), Err(LayerIdError), "{bad:?}");
        }
        let id = LayerId::from_digest(&[0xab; 32]);
        assert_eq!(id.as_str().parse(), Ok(id));
    }
}
