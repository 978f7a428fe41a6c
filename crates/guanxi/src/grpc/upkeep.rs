//! Of the service `Admin`: audits, and a standby's state and promotion.

use guanxi_api::proto::{
    AuditReport, AuditState, GetAuditRequest, GetStandbyRequest, PromoteRequest, Promotion,
    RunAuditAnswer, RunAuditRequest, Standby, run_audit_answer,
};
use guanxi_model::Error;

use super::Call;
use crate::calls::{audit, standby};

pub async fn run_audit(call: Call, request: RunAuditRequest) -> Result<RunAuditAnswer, Error> {
    let caller = call.caller(&request.at_least);
    let run = audit::run(&caller, request.kind.as_deref(), request.repair).await?;
    let catalog = caller.catalog();
    let result = match run {
        Some(run) => {
            let report = audit::report(&run, &catalog).ok_or_else(audit::lost)?;
            run_audit_answer::Result::Report(AuditReport::from(report))
        }
        None => {
            let state = call.app.deployment.audit_state();
            run_audit_answer::Result::GoesOn(AuditState::from(audit::shown(&state, &catalog)))
        }
    };
    Ok(RunAuditAnswer { result: Some(result) })
}

pub async fn get_audit(call: Call, request: GetAuditRequest) -> Result<AuditState, Error> {
    let caller = call.caller(&request.at_least);
    caller.meet().await?;
    let state = call.app.deployment.audit_state();
    Ok(audit::shown(&state, &caller.catalog()).into())
}

pub async fn get_standby(call: Call, _request: GetStandbyRequest) -> Result<Standby, Error> {
    Ok(standby::view(&standby::engine(&call.app)?.status()).into())
}

pub async fn promote(call: Call, _request: PromoteRequest) -> Result<Promotion, Error> {
    standby::promote(&call.app).await.map(Promotion::from)
}
