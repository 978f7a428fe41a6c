//! Jobs: progress and receipts.

use guanxi_api::jobs::{JobView, Jobs, ListJobs};
use guanxi_model::job::JobId;
use guanxi_model::limits::PAGE_ITEMS_MAX;

use super::document::{AdminReadRefusals, JobPath, JobsListed, NodeReadRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::jobs;

/// How much of a wrong job an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Reads a job's progress, and its receipt at the end.
#[utoipa::path(
    get, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "get_job",
    params(JobPath),
    responses((status = 200, description = "The job.", body = JobView), NodeReadRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    let text = request.part("job");
    let id = text.parse().map_err(|_| {
        let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
        jobs::unknown(shown)
    });
    reply::ok(&jobs::get(request.caller(&query).await?, JobId(id?)).await?)
}

/// Lists jobs, the newest first.
#[utoipa::path(
    get, path = "/v1/admin/jobs", tag = "admin", operation_id = "list_jobs",
    params(JobsListed),
    responses((status = 200, description = "The jobs.", body = Jobs), AdminReadRefusals),
)]
pub async fn list(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["limit", "cursor"])?;
    request.no_body()?;
    let limit = query.number("limit", 1..=PAGE_ITEMS_MAX as u64)?.map(|limit| limit as usize);
    let list = ListJobs { limit, cursor: query.text("cursor").map(str::to_owned) };
    reply::ok(&jobs::list(request.caller(&query).await?, list).await?)
}
