/** Stand-ins for classes of Android, with files in place of an app. */
package android.content

class Context(
    val assets: android.content.res.AssetManager,
    val contentResolver: ContentResolver = ContentResolver(),
)

class ContentResolver
