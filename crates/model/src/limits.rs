//! Every bound of the model, with its reason. A bound that belongs to one deployment or to one
//! protocol stands with that code; what callers may rely on stands here.

use crate::time::Millis;

/// A kind's name appears in every path and metric label.
pub const KIND_NAME_BYTES_MAX: usize = 32;
/// Kinds per tenant: `decide` walks them for erasures and exclusions.
pub const KINDS_MAX: usize = 1_000;
/// A group's name, in characters as a person counts them.
pub const GROUP_NAME_CHARS_MAX: usize = 64;
/// What a kind may allow as groups per source: a source's groups are read together.
pub const GROUPS_PER_SOURCE_MAX: u32 = 1_000;
/// The caller's own bytes per edge; rows stay small enough to live in one journal page.
pub const DATA_BYTES_MAX: usize = 128;
/// Kinds that one kind may exclude: each costs two row reads on a put.
pub const EXCLUDES_MAX: usize = 8;
/// An idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 64;
/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_TTL_MS: u64 = 24 * 60 * 60 * 1_000;
/// Each text of a change's origin, such as its reason: it goes with every record of the change.
pub const ORIGIN_TEXT_BYTES_MAX: usize = 64;
/// A source with fewer outgoing edges of a kind than this is fresh: what it did first is worth more
/// to whoever shows it around.
pub const FRESH_EDGES_MAX: i64 = 4;
/// An import's id: it stands in a path.
pub const IMPORT_ID_BYTES_MAX: usize = 64;
/// Outgoing edges of a source up to which an import may ignore its kind's limit: a list that long
/// is still sorted in memory.
pub const IMPORT_OUTGOING_MAX: u32 = 10_000;
/// Why a line of an import was rejected: a reason may repeat the line.
pub const IMPORT_REASON_CHARS_MAX: usize = 300;
/// Rejected lines that are kept with an import's place, for a run that goes on after a stop. The
/// place is written with every chunk of lines.
pub const IMPORT_REJECTS_KEPT_MAX: usize = 10_000;
/// The reasons of all of them, where they are longer than the usual hundred bytes.
pub const IMPORT_REASONS_KEPT_BYTES_MAX: usize = 1 << 20;
/// A counter's value and a delta, either sign: what a JSON number carries exactly.
pub const COUNTER_ABS_MAX: i64 = (1 << 53) - 1;

/// Outgoing lists up to this long are sorted in memory; kinds that allow more keep a time index.
pub const OUTGOING_SORTED_MAX: u32 = 2_000;
/// Items of a page.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Items of a page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: usize = 20;
/// Edges that are counted through for a page by its number; as many as an import may leave to a
/// source. A cursor walks on from where a page ended, whatever came before.
pub const NUMBERED_EDGES_MAX: usize = IMPORT_OUTGOING_MAX as usize;
/// Edges that a filtered walk (mutual, known, group), or a scan, looks at for one page.
pub const WALK_EDGES_MAX: usize = 4_000;

/// Changes in one request.
pub const REQUEST_CHANGES_MAX: usize = 1_000;
/// Checks in one request: targets × kinds (× 2 with reverse), or pairs.
pub const REQUEST_CHECKS_MAX: usize = 1_000;
/// Tallies in one request: ids × kinds.
pub const REQUEST_TALLIES_MAX: usize = 1_000;
/// Objects in one hydrate.
pub const HYDRATE_OBJECTS_MAX: usize = 256;
/// Kinds, tallies and reverse kinds in one hydrate, each.
pub const HYDRATE_KINDS_MAX: usize = 16;
/// Hydrates in one request.
pub const HYDRATE_REQUESTS_MAX: usize = 256;
/// Checks and tallies of all hydrates in one request.
pub const HYDRATE_CELLS_MAX: usize = 16_384;

/// The last millisecond a row can hold: six bytes in keys, 44 bits in versions.
pub const TIME_MAX: Millis = Millis((1 << 44) - 1);
/// Edges that one step of a job changes: small enough not to delay other batches.
pub const JOB_STEP_EDGES_MAX: usize = 500;
