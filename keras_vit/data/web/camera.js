// The camera.

const REASONS = {
  NotAllowedError: "The browser may not use the camera. Allow it, or choose a photo.",
  NotFoundError: "There is no camera.",
  NotReadableError: "Another program uses the camera.",
  OverconstrainedError: "The camera does not have the requested size.",
};

/** Shows the camera in a video element. */
export async function startCamera(video) {
  if (!navigator.mediaDevices) {
    throw new Error("A page may use the camera only over https or on localhost.");
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({
      audio: false,
      video: { facingMode: { ideal: "environment" }, width: { ideal: 1280 } },
    });
  } catch (error) {
    throw new Error(REASONS[error.name] ?? `No camera: ${error.message}`);
  }
  const [track] = video.srcObject.getVideoTracks();
  // One's own image is expected as in a mirror; the model sees it as it is.
  const { facingMode } = track.getSettings();
  video.classList.toggle("mirrored", facingMode === "user");
  await video.play();
}

/** Switches the camera off. */
export function stopCamera(video) {
  video.srcObject?.getTracks().forEach((track) => track.stop());
  video.srcObject = null;
}
